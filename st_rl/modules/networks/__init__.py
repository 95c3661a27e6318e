"""Parts that policies are built from: recurrent memory, encoders, estimator heads, action distributions."""
