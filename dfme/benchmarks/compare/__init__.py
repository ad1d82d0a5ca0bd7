"""Methods side by side: a run for each row, seed, budget and label mode, and what they come to together.

``rows.py`` says what each row is, ``plan.py`` lists the cells, ``processes.py`` runs them, ``figures.py`` reads what
a run left, ``spread.py`` does the arithmetic over seeds, ``table.py`` and ``picture.py`` show it, and ``session.py``
is the whole. No torch, but for ``session.py``: there ``fitness.py`` asks the methods what answers they can use.
"""
