"""Records the table of curves that ``python -m benchmarks.search`` replays.

81 networks of scikit-learn's digits (1,797 pictures, every third one held back), 27 epochs each: 9 rates x 3 widths x 3 sizes of batch. The number is
the area under the ROC curve of the pictures held back, one class against the rest, by epoch. Run it with a Python that has scikit-learn::

    python benchmarks/recorded/digits.py > benchmarks/recorded/digits.json
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings

RATES = [round(10 ** (-4.5 + 0.5 * step), 8) for step in range(9)]
WIDTHS, BATCHES, EPOCHS = (8, 16, 32), (16, 64, 256), 27


def main() -> None:
    """Train all of them, and print the table."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.metrics import roc_auc_score
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore")
    rows, labels = load_digits(return_X_y=True)
    rows = rows / 16
    held = np.arange(len(rows)) % 3 == 0
    table = []
    for rate, width, batch in itertools.product(RATES, WIDTHS, BATCHES):
        network = MLPClassifier((width,), learning_rate_init=rate, batch_size=batch, random_state=7)
        curve = []
        for _ in range(EPOCHS):
            network.partial_fit(rows[~held], labels[~held], classes=np.arange(10))
            said = network.predict_proba(rows[held])
            good = np.isfinite(said).all()
            curve.append(
                round(float(roc_auc_score(labels[held], said, multi_class="ovr")), 6) if good else None
            )
        table.append({"params": {"rate": rate, "width": width, "batch": batch}, "auc": curve})
        print(f"{len(table)} of 81: {curve[-1]}", file=sys.stderr, flush=True)
    lines = ",\n".join(json.dumps(each) for each in table)
    print(f"[\n{lines}\n]")


if __name__ == "__main__":
    main()
