"""Kill a run in its midst, and go on with it: it ends as it would have, to the last bit.

python examples/resume_after_a_kill.py
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import load_file

STEPS = "4096" if os.environ.get("IMEL_SHORT") else "3e4"
IMEL = [sys.executable, "-c", "from imel.cli.main import main; raise SystemExit(main())"]
PLAN = ["Pendulum-v1", "--total-timesteps", STEPS, "--checkpoint-every", "1", "--overwrite"]

subprocess.run([*IMEL, "train", *PLAN, "--run-dir", "runs/whole"], check=True)

process = subprocess.Popen([*IMEL, "train", *PLAN, "--run-dir", "runs/killed"])
while process.poll() is None and not list(Path("runs/killed/checkpoints").glob("iteration-*")):
    time.sleep(0.02)
process.kill()  # no chance to clean up
process.wait()
subprocess.run([*IMEL, "resume", "runs/killed"], check=True)

whole, resumed = (load_file(f"runs/{name}/model.safetensors") for name in ("whole", "killed"))
print("different tensors:", [name for name in whole if not whole[name].equal(resumed[name])])
