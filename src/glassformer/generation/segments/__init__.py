"""Lines that hold several sentences: taken apart, translated sentence by sentence, and joined."""
