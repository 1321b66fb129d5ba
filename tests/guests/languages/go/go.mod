module behaviour

go 1.24

require wasmill v0.0.0

replace wasmill => ../../../../guest-sdk/go
