# frozen_string_literal: true

# Rack 2; later ones have their handlers in rackup.
require "rack/handler"
require "komainu"

Rack::Handler.register("komainu", Komainu::Handler)
