# frozen_string_literal: true

# What is not in the bundle is not there, though it is installed.
found = begin
  require "sinatra/base"
  "found"
rescue LoadError
  "not found"
end

run ->(_) { [200, {}, ["#{defined?(Bundler) ? "bundled" : "loose"}, sinatra #{found}"]] }
