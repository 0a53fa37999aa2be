"""What README claims about speed, measured against the tools people use today."""
