"""Child of test_damage: restores what it can, checking every byte, then writes everything anew."""

import logging
import sys
from pathlib import Path

from tests.store import kv


def main() -> None:
    logging.disable()
    with kv.open_store(Path(sys.argv[1])) as store:
        root = store.register(kv.FINGERPRINT)
        rebuilt = store.statistics().rebuilt
        prompts = [kv.tokens((1, 300), (seed, 400)) for seed in range(4)]
        restored = sum(kv.restore(store, root, prompt, 8) for prompt in prompts)
        for prompt in prompts:
            assert kv.resume(store, root, prompt, 8) in (0, 200, 600)
        print(f"{restored} of 2800, {rebuilt} rebuilt")
        assert store.flush(120)
        for prompt in prompts:
            for _ in range(6):
                kv.Offer(store, root, prompt, scale=8, points=(200, 600)).wait()
                if kv.restore(store, root, prompt, 8) == 700 and kv.resume(store, root, prompt, 8) == 600:
                    break
                assert store.flush(120)
            else:
                raise SystemExit(f"the store does not heal: {store.statistics()}")


if __name__ == "__main__":
    main()
