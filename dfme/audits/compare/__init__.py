"""Methods side by side: a run for each row, seed, budget and label mode, and what they come to together.

``rows.py`` says what each row is, ``plan.py`` lists the cells, ``engines/`` runs them, ``figures.py`` reads
what a run left, ``table.py`` and ``picture.py`` show it over all seeds, and ``session.py`` is the whole, and
alone loads torch: it asks the methods what answers they can use.
"""
