"""Check a deploy kit: files, golden run, and closed loop in plain MuJoCo: st-rl deploy check KIT."""
