"""``experiment=predict``: a recording and a cost file give the speed of every shape, marked as predicted."""
