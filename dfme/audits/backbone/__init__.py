"""Is a teacher a public backbone with a head on it? Asked with drawn images, told by one solve."""
