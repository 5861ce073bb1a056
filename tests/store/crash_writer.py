"""Child of test_crash: saves, deletes and evicts for ever, and says on stdout what was acknowledged."""

import sys
from pathlib import Path

from store import Store
from tests.store import kv


def main() -> None:
    folder, seed, budget = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = Store.open(folder, budget_bytes=budget, min_free_bytes=0)
    root = store.register(kv.FINGERPRINT)
    names = [info.name for info in store.list_manifests()]
    print("ready", flush=True)
    while True:
        seed += 1
        prompt = kv.tokens((1, 300), (seed, 400))
        kv.Offer(store, root, kv.tokens((1, 300), (seed, 90)), scale=8, points=(100, 300, 390))
        kv.write(store, root, prompt, "save", scale=8, points=(100, 300, 500, 700))
        store.save_manifest(str(seed), root, prompt)
        names.append(str(seed))
        print("save", seed, flush=True)
        if len(names) > 4:
            gone = names.pop(0)
            store.delete_manifest(gone)
            print("delete", gone, flush=True)


if __name__ == "__main__":
    main()
