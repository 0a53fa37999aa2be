"""Writing patches: import, edit, refresh, export, lint. Everything here works on bytes and git objects."""
