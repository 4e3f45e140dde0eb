"""What ``baseline`` measures with: the traffic it sends, what it sees, and the file it writes."""
