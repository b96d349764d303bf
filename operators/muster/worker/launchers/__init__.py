"""How ranks find each other: one module for each value of :class:`muster.core.job.Launcher`.

Each module is a :class:`muster.worker.launchers.launcher.RankLauncher`. A new launcher is a file here, a
line in that enumeration, and a row in docs/howto/launchers.md.
"""
