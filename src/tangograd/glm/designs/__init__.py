"""From the columns of a table to a design matrix: formulas, categories, missing values."""
