"""The ops of gdt, one family a file."""
