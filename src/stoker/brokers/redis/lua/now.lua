-- The server's clock, in microseconds.
return now_us()
