"""What a policy needs on a real robot: observations from raw sensors, joint targets from actions."""
