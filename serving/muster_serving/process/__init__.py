"""A model in a process of its own, behind the front: the layout of its rows, the process, and who starts it and asks it."""
