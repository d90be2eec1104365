"""What moves, what runs where, and what is installed: observers of calls, tables and drawings."""
