"""What a teacher answers, on both sides: how it is read, how a defence changes it, what of it can be recovered."""
