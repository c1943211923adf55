package main

import (
	"net/http"

	"github.com/labstack/echo/v5"
)

// withEcho protects all of echo, from the outside. Around single routes
// (echo.WrapMiddleware) it would see the answers that handlers write, but not the
// errors that they return: echo answers those after its middleware has returned.
func withEcho(s *shop, protect middleware) http.Handler {
	e := echo.New()
	e.POST("/accounts/:id/charges", func(c *echo.Context) error {
		return c.String(http.StatusCreated, s.charge(c.Param("id")))
	})
	return protect(e)
}
