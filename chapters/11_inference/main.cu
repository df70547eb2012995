// A placeholder, so that the folder builds before the chapter's program is there.
int main() { return 0; }
