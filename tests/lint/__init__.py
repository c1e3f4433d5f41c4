"""Lints as tests: each rule is proven by a file it must refuse, then run over the tree."""
