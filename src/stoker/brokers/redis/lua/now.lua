-- Return the server's time in microseconds.
return now_us()
