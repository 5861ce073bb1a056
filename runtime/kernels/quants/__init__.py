"""One file per weight type: its layouts, its step, its packer and decoder, and their entry points."""
