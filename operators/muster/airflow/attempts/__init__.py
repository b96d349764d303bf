"""A try of a task and its job: begun, adopted, waited for here or by a trigger, and ended with the task."""
