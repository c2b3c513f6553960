"""likewise: pull what is alike, push what is not."""
