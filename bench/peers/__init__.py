"""The same steps in other libraries, each run in an environment of its own (`make peers`)."""
