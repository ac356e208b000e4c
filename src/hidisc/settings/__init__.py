"""Every setting of every verb, its default and its meaning; `config` reads them and `recipes/` has shipped ones."""
