"""Comparisons of methods, attackers and defences, and audits of a teacher."""
