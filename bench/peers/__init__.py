"""The same steps in other libraries, each in its own environment (`make peers`)."""
