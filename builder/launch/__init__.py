"""How an image is started on every node: known arguments, fitting addresses, sufficient memory."""
