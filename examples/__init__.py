"""Small Django projects that use Stoker."""
