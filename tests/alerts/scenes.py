"""All scenes."""

from tests.alerts import scenes_fleet, scenes_health, scenes_judged

SCENES = [*scenes_judged.SCENES, *scenes_fleet.SCENES, *scenes_health.SCENES]
