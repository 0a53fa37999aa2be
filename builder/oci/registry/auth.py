"""Who we are to a registry: challenges, bearer tokens by scope, and the way back to anonymous.

Follows Docker's token authentication specification and RFC 9110, section 11.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock

from builder.errors import Unavailable
from builder.oci.registry.credentials import Login

# A token says how long it lives, in seconds; the specification's default is 60.
TOKEN_LIFE = 60.0
TOKEN_MARGIN = 10.0

LONGEST_CHALLENGE = 16 << 10  # characters of one header
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# What a header's value is made of: a parameter, or the scheme that begins the next challenge.
_PIECE = re.compile(
    rf'(?P<key>{_WORD})[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s",]+))'
    rf"|(?P<scheme>{_WORD})(?:[ \t]+|$|(?=,))",
    re.DOTALL,
)

Scopes = frozenset[str]


def pull(repository: str) -> str:
    """The scope for reading ``repository``."""
    return f"repository:{repository}:pull"


def push(repository: str) -> str:
    """The scope for reading and writing ``repository``."""
    return f"repository:{repository}:pull,push"


class DeniedError(Unavailable):
    """The registry knows who we are, or that we are nobody, and says no."""


@dataclass(frozen=True)
class Challenge:
    """What a registry wants to see: ``basic``, or a ``bearer`` token from ``realm``."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """The challenges of ``WWW-Authenticate`` headers that a registry can mean; others are left out.

    A header may hold several, with commas between them as between the parameters of one (RFC 9110, 11.6.1).
    """
    found: list[Challenge] = []
    for header in headers:
        parameters: dict[str, str] = {}  # of a scheme that was not named: nobody reads them
        for piece in _PIECE.finditer(header[:LONGEST_CHALLENGE]):
            if piece["scheme"]:
                parameters = {}
                found.append(Challenge(piece["scheme"].lower(), parameters))
            elif piece["quoted"] is not None:
                parameters.setdefault(piece["key"].lower(), re.sub(r"\\(.)", r"\1", piece["quoted"]))
            else:
                parameters.setdefault(piece["key"].lower(), piece["plain"])
    known = (challenge for challenge in found if challenge.scheme in ("basic", "bearer"))
    return [challenge for challenge in known if challenge.parameters]


@dataclass(frozen=True)
class TokenRequest:
    """A request to a token server.

    Args:
        realm: its address.
        query: parameters of a ``GET``, or the form of a ``POST``.
        login: sent as ``Basic`` with a ``GET``, as a refresh token with a ``POST``; ``None`` is anonymous.
    """

    realm: str
    query: tuple[tuple[str, str], ...]
    login: Login | None

    @property
    def is_form(self) -> bool:
        return self.login is not None and not self.login.user


# Asks a token server: the decoded answer, or None where it refuses this login.
AskForToken = Callable[[TokenRequest], Mapping[str, object] | None]


@dataclass(frozen=True)
class _Header:
    value: str | None
    expires: float
    login: Login | None


class Authorizer:
    """Authorization headers for one registry. Threads share it: one of them finds out who we are.

    Args:
        registry: its name, for messages.
        find_login: asked once, and only when the registry wants to know who we are.
        ask: sends a token request.
        warn: hears what a person should know though the work goes on.
    """

    def __init__(
        self,
        registry: str,
        find_login: Callable[[], Login | None],
        ask: AskForToken,
        warn: Callable[[str], None],
    ) -> None:
        self._registry = registry
        self._find_login = find_login
        self._ask = ask
        self._warn = warn
        self._login: Login | None = None
        self._login_known = False
        self._warned = False
        self._challenge: Challenge | None = None
        self._headers: dict[Scopes, _Header] = {}
        self.negotiating = Lock()
        """Held by the thread whose refused request is tried with other headers."""

    def header(self, scopes: Scopes) -> str | None:
        """What to send first: what worked for these scopes, or what the known challenge asks for."""
        if kept := self._kept(scopes):
            return kept.value
        if self._challenge is None:
            return None
        with self.negotiating:
            if kept := self._kept(scopes):
                return kept.value
            for header in self._fresh(scopes, self._challenge):
                self._headers[scopes] = header
                return header.value
        return None

    def _kept(self, scopes: Scopes) -> _Header | None:
        kept = self._headers.get(scopes)
        return kept if kept and kept.expires > time.monotonic() else None

    def after_refusal(
        self, scopes: Scopes, challenges: Iterable[str], refused: str | None
    ) -> Iterator[str | None]:
        """Further headers to try, best first, each differing from ``refused``.

        What another thread found meanwhile comes first, then a login; for reading, nobody's name comes after
        it (a stale login must not hide a public image). Taking the next one says that the one before was
        refused too. The caller holds :attr:`negotiating`.
        """
        found = self._kept(scopes)
        if found and found.value != refused:
            yield found.value
            refused = found.value
        understood = sorted(parse_challenges(challenges), key=lambda challenge: challenge.scheme != "bearer")
        challenge = next(iter(understood), self._challenge)
        if challenge is None:
            return
        self._challenge = challenge
        for header in self._fresh(scopes, challenge):
            if header.value == refused:
                continue
            self._headers[scopes] = header
            yield header.value
            self._headers.pop(scopes, None)  # asked for another: this one did not help

    def accepted(self, scopes: Scopes) -> None:
        """The last header worked; say so if it was nobody's although there is a login."""
        used = self._headers.get(scopes)
        if used and used.login is None and self._login and not self._warned:
            self._warned = True
            self._warn(f"{self._registry} refused the login {self._login}; reading without it")

    def denied(self, what: str, where: str, scopes: Scopes, detail: str) -> DeniedError:
        """The error when nothing is left to try."""
        login = self._login
        doing = "written" if _writes(scopes) else "read"
        command = f"docker login {self._registry}"
        if login:
            hint = f"the login {login} does not allow it, or is stale: {command}, or ask for access"
        else:
            hint = f"there is no login for {self._registry}: {command}"
        if not _writes(scopes):
            hint += "; registries say the same of a repository that does not exist"
        return DeniedError(
            f"{what} was denied: the repository may not be {doing}",
            where=where,
            found=detail or None,
            hint=hint,
            facts={"registry": self._registry, "login": str(login) if login else None},
        )

    def _fresh(self, scopes: Scopes, challenge: Challenge) -> Iterator[_Header]:
        login = self._known_login()
        nobody = [None] if login is None or not _writes(scopes) else []
        for who in [login, *nobody] if login else nobody:
            header = self._header_for(who, scopes, challenge)
            if header:
                yield header

    def _known_login(self) -> Login | None:
        if not self._login_known:
            self._login = self._find_login()
            self._login_known = True
        return self._login

    def _header_for(self, login: Login | None, scopes: Scopes, challenge: Challenge) -> _Header | None:
        if challenge.scheme == "basic":
            usable = login.basic if login and login.user else None
            return _Header(usable, float("inf"), login) if usable or login is None else None
        answer = self._ask(_token_request(challenge, scopes, login, self._registry))
        if answer is None:
            return None
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token.isprintable() or not token.isascii():
            raise Unavailable(
                "the token server's answer holds no token", where=self._registry, hint="try again later"
            )
        life = answer.get("expires_in")
        seconds = float(life) if isinstance(life, int | float) and life > 0 else TOKEN_LIFE
        return _Header(f"Bearer {token}", time.monotonic() + max(seconds - TOKEN_MARGIN, 1.0), login)


def _token_request(challenge: Challenge, scopes: Scopes, login: Login | None, registry: str) -> TokenRequest:
    realm = challenge.parameters.get("realm")
    if not realm:
        raise Unavailable("the registry asks for a token but not from where", where=registry)
    wanted = set(scopes)
    if not wanted and "scope" in challenge.parameters:
        wanted = set(challenge.parameters["scope"].split())
    query = [("service", challenge.parameters["service"])] if "service" in challenge.parameters else []
    if login and not login.user:
        query += [("grant_type", "refresh_token"), ("client_id", "overlay"), ("refresh_token", login.secret)]
        query += [("scope", " ".join(sorted(wanted)))] if wanted else []
    else:
        query += [("scope", scope) for scope in sorted(wanted)]
    return TokenRequest(realm, tuple(query), login)


def _writes(scopes: Scopes) -> bool:
    return any("push" in scope.rpartition(":")[2] for scope in scopes)
