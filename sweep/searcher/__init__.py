"""Who proposes the next flags: Optuna (`proposer`), and its place in Ray Tune."""
