"""How ranks learn of each other: one module for each launcher, named as :class:`muster.core.job.Launcher` names it.

Each module is a :class:`muster.worker.launchers.launcher.RankLauncher`. A new one is its file here, its line in
that enumeration, and its row in docs/howto/launchers.md.
"""
