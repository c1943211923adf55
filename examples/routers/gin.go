package main

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// withGin protects all of gin, from the outside: gin's own middleware has another
// type. Requests with GET and other methods pass.
func withGin(s *shop, protect middleware) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/accounts/:id/charges", func(c *gin.Context) {
		c.String(http.StatusCreated, s.charge(c.Param("id")))
	})
	return protect(r)
}
