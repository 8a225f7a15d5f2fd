"""Script that creates the pictures of the README: `python examples/pictures.py`. It needs Chromium and pygame."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np

from episodes import SingleAgentEpisode
from episodes.inspect.html_report import write_report
from episodes.storage import EpisodeDataset, EpisodeWriter

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"


def play_episode(env: gym.Env, seed: int, care: float) -> SingleAgentEpisode:
    """Play an episode of CartPole, and return it with its frames.

    With probability `care` the action pushes the cart towards the falling pole. Otherwise it is random.
    """
    random = np.random.default_rng(seed)
    episode = SingleAgentEpisode(f"pole-{seed:02d}")

    def observe(state: np.ndarray) -> dict[str, np.ndarray]:
        frame = np.asarray(env.render())[160:340:2, 150:450:2]
        return {"camera": frame, "state": state}

    state, _ = env.reset(seed=seed)
    episode.add_env_reset(observe(state))
    while not episode.is_done:
        falls = state[2] + 0.4 * state[3] + 0.05 * state[0] + 0.1 * state[1]
        action = int(falls > 0) if random.random() < care else int(random.integers(2))
        state, reward, terminated, truncated, _ = env.step(action)
        outputs = {"action_logp": float(np.log(care * (action == int(falls > 0)) + (1 - care) / 2))}
        episode.add_env_step(
            observe(state),
            action,
            float(reward),
            terminated=terminated,
            truncated=truncated,
            extra_model_outputs=outputs,
        )
    return episode.to_numpy()


def save_screenshot(page: Path, picture: Path, width: int, height: int) -> None:
    """Open `page` in a browser, and write a screenshot to `picture` as PNG."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--blink-settings=preferredColorScheme=1",
    ]
    size = f"--window-size={width},{height}"
    subprocess.run([browser, *options, size, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


def main() -> None:
    """Play 30 episodes, and write screenshots of the notebook view of one episode and of the page of all episodes."""
    PICTURES.mkdir(exist_ok=True)
    env = gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=200)
    episodes = [play_episode(env, seed, care) for seed, care in enumerate(np.linspace(0.0, 0.95, 30))]
    with tempfile.TemporaryDirectory() as folder:
        view = Path(folder) / "episode.html"
        best = max(episodes[:-1], key=lambda episode: len(episode) * episode.is_terminated)
        view.write_text(f'<meta charset="utf-8"><body style="margin:12px">{best._repr_html_()}')
        save_screenshot(view, PICTURES / "episode.png", 1010, 412)
        with EpisodeWriter(Path(folder) / "CartPole", env_spec="CartPole-v1") as writer:
            writer.add(episodes)
        page = write_report(EpisodeDataset(Path(folder) / "CartPole"), Path(folder) / "page.html")
        save_screenshot(page, PICTURES / "page.png", 1300, 760)


if __name__ == "__main__":
    main()
