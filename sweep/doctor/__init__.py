"""`python -m sweep.doctor STUDY`: whether this machine, or every node of a cluster, is fit for a study."""
