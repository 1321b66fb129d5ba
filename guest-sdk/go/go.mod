module wasmill

go 1.24
