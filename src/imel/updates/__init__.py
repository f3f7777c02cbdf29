"""How a batch of experience changes the policy: plainly, as the paper reads, or anchored."""
