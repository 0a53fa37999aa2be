# bash completion for overlay: asks the command itself.
_overlay() {
  local kind value
  COMPREPLY=()
  while IFS=, read -r kind value; do
    case $kind in
      dir) compopt -o dirnames 2>/dev/null ;;
      file) compopt -o default 2>/dev/null ;;
      plain) COMPREPLY+=("$value") ;;
    esac
  done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _OVERLAY_COMPLETE=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F _overlay overlay
