"""Teams: one document of the site says whose a Dag, a queue, a volume and a secret is; what is another team's is refused."""

from __future__ import annotations

from muster.core.extensions import Extension

EXTENSION = Extension(
    teams="muster.ext.teams.document:read",
    settings={
        "teams": {
            "description": "The file that names the site's teams, with their queues, volumes and secrets. Empty: "
            "`teams.toml` beside the Dag folder, or no teams where it is not there.",
            "example": "/etc/muster/teams.toml",
        }
    },
)
