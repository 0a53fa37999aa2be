"""Is what is patched still Python? Files before and after, compiled and compared; nothing of them is run."""
