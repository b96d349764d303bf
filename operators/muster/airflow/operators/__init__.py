"""The operators, and what each of them decides as pure functions."""
