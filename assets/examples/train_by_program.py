"""Trains a recipe in the studio that is open: python assets/examples/train_by_program.py WORKSPACE recipe.json."""

import json
import os
import sys
from pathlib import Path

from gradio_client import Client

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio_client would tell the hub that it is used
workspace, recipe_file = map(Path, sys.argv[1:])
address = json.loads((workspace / "address.json").read_text(encoding="utf-8"))
studio = Client(
    address["url"].partition("?")[0],
    headers={"Authorization": f"Bearer {address['key']}"},
    verbose=False,
    analytics_enabled=False,
)


def ask(name, *values):
    """Return the answer of an endpoint; a refusal ends the program with its three sentences."""
    answer = studio.predict(*values, api_name=f"/{name}")
    if "error" in answer:
        sys.exit("\n".join(answer["error"][part] for part in ("what", "why", "fix")))
    return answer


recipe = json.loads(recipe_file.read_text(encoding="utf-8"))
for problem in ask("check", recipe)["problems"]:
    print(problem["severity"], problem["field"], problem["message"], problem["fix"])
run = ask("start", recipe)["run"]
cursor, going_on = 0, True
while going_on:
    answer = ask("events", run, cursor, 30)
    for event in answer["events"]:
        if event["kind"] == "step_logged":
            print(f"step {event['step']} of {event['total_steps']}: loss {event['loss']:.3f}", flush=True)
    cursor, going_on = answer["cursor"], answer["active"] or answer["more"]
status = ask("status", run)
print(status["run"], status["state"], status["loss"])
studio.close()
