"""Searches: which params are tried next, which trial stops at a rung, and which one is the best.

``state`` is what the events of a search say, ``rules`` decides what comes next, ``sampling`` chooses the params of a new
trial, and ``simulation`` plays a search without jobs. None of them does I/O. ``driver`` does; ``cost`` says what a search
would cost, and ``tracking`` tells MLflow.
"""
